"""What of torch is left out until it is asked for, each time in a process that has none yet."""

from __future__ import annotations

import subprocess
import sys

FIRST = "import sys; from flarechat.engine import late; late.leave_out(); import torch"


def says(script: str) -> str:
    command = [sys.executable, "-c", f"{FIRST}; {script}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_torch_computes_without_what_is_left_out() -> None:
    script = "print(torch.ones(2, 2).matmul(torch.ones(2)).tolist(), 'torch._refs' in sys.modules)"

    assert "[2.0, 2.0] False" == says(script)


def test_what_is_left_out_comes_when_it_is_asked_for() -> None:
    script = (
        "from torch._meta_registrations import register_meta as first; "
        "from torch._meta_registrations import register_meta as again; "
        "print(first is again, 'torch._refs' in sys.modules, "
        "torch.empty(2, 3, device='meta').T.shape == (3, 2))"
    )

    assert "True True True" == says(script)


def test_whoever_looks_through_all_modules_loads_nothing() -> None:
    script = (
        "import inspect; inspect.getmodule(torch.ones); "
        "[getattr(m, '__file__', 0) for m in list(sys.modules.values())]; "
        "print('torch._refs' in sys.modules)"
    )

    assert "False" == says(script)


def test_what_is_loaded_already_stays() -> None:
    script = "late.leave_out('torch'); print(sys.modules['torch'] is torch)"

    assert "True" == says(script)
