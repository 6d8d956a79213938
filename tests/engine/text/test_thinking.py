"""Whether a model has marks of thinking, and whether a prompt opens it."""

from __future__ import annotations

import pytest

from flarechat.engine.make_random.text import TEMPLATE, Vocabulary
from flarechat.engine.text.channels import router_for
from flarechat.engine.text.template import ChatTemplate, encode_chat
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.protocol import Message

VOCABULARY = Vocabulary(256)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(VOCABULARY.tokenizer_json())


def test_a_prompt_says_whether_the_answer_begins_inside_thinking(tokenizer: Tokenizer) -> None:
    def channel(prompt: str) -> str:
        router = router_for(tokenizer, tokenizer.encode(prompt))
        assert router is not None
        return (router.push("x") + router.flush())[0][0]

    assert "thinking" == channel("<|im_start|>assistant\n<think>\n")
    assert "answer" == channel("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert "answer" == channel("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>model\n")
    assert "answer" == channel("plain")


def test_a_model_without_the_marks_has_no_router(tokenizer: Tokenizer) -> None:
    marked = VOCABULARY.tokenizer_json()
    for literal in ("<think>", "</think>"):
        bare = Tokenizer(marked.replace(f'"content": "{literal}"', '"content": "<gone>"'))
        assert router_for(bare, [65]) is None
    assert router_for(tokenizer, [65]) is not None


def test_the_random_models_tokens_say_what_was_encoded(tokenizer: Tokenizer) -> None:
    for text in ("Grüße, 日本!\r\n\t€ \x00", " <think> <|im_end|> </tool_call>"):
        assert text == tokenizer.decode(tokenizer.encode_plain(text))
    assert 282 == tokenizer.vocabulary
    assert [257] == tokenizer.encode("<|im_start|>")
    assert 257 not in tokenizer.encode_plain("<|im_start|>")


def test_the_real_vocabulary_has_the_ids_of_the_family() -> None:
    real = Vocabulary(248044).control

    assert (248044, 248053, 248054, 248056, 248057) == tuple(
        real[f"<|{name}|>"]
        for name in ("endoftext", "vision_start", "vision_end", "image_pad", "video_pad")
    )


def test_the_template_opens_thinking_and_leaves_earlier_thoughts_out() -> None:
    chat = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi"),
        Message(role="assistant", content="<think>\nhm\n</think>\n\nHello."),
        Message(role="user", content="Bye"),
    ]
    before = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )

    assert before == ChatTemplate(TEMPLATE).render(chat, add_generation_prompt=False)
    opened = f"{before}<|im_start|>assistant\n<think>\n"
    assert opened == ChatTemplate(TEMPLATE).render(chat)
    assert f"{opened}\n</think>\n\n" == ChatTemplate(TEMPLATE).render(chat, thinking=False)


def test_the_template_describes_tools(tokenizer: Tokenizer) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"zone": "<b>"}}}
    chat = [Message(role="user", content="Time?")]

    text = ChatTemplate(TEMPLATE).render(chat, tools=[tool])

    assert text.startswith(
        "<|im_start|>system\n# Tools\n\nThese functions can be called:\n<tools>\n"
        '{"type": "function", "function": {"name": "now", "parameters": {"zone": "<b>"}}}'
        "\n</tools>\n\n"
    )
    assert text.endswith("<|im_end|>\n<|im_start|>user\nTime?<|im_end|>\n"
                         "<|im_start|>assistant\n<think>\n")  # fmt: skip


def test_thinking_is_off_for_a_request_that_forbids_it(tokenizer: Tokenizer) -> None:
    chat = [Message(role="user", content="<|im_end|> Hi")]
    template = ChatTemplate(TEMPLATE)

    on, off = (encode_chat(template, tokenizer, chat, thinking=t) for t in (True, False))

    assert off == [*on, *tokenizer.encode("\n</think>\n\n")]
