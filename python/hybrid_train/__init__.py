"""hybrid-train from Python: trains language models, and is the optimizer of PyTorch or NumPy loops.

    import hybrid_train

    hybrid_train.train(model="nano", steps=200)                       # a built-in model

    loop = hybrid_train.Loop(module.named_parameters(), steps=1000, lr=3e-4)
    loop.run(lambda batch: loss_of(module, data[batch]))              # your model, your data

    hybrid_train.generate("runs/mine", ["Once upon a time"], max_tokens=100)      # answers of a model

The C library does the work; this package is a thin layer over it, without a compiled part and without
dependencies. torch and NumPy are used only if your program uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _abi
from .chunked import chunked_cross_entropy
from .config import Config
from .errors import (
    DeviceError,
    Error,
    FileError,
    InputError,
    InternalError,
    MemoryError_,
    NumericError,
    StateError,
    Stopped,
)
from .generator import Answer, Generated, Generator, Request, Sampling, generate
from .loop import Loop, Step, plan_parameters
from .ranks import find_rank
from .results import (
    ConfigKey,
    EvalInfo,
    GeneratorFacts,
    GeneratorState,
    MemoryState,
    PlanFacts,
    RankInfo,
    RanksInfo,
    RunEvent,
    RunFacts,
    RunPoint,
    Saving,
    StepInfo,
    Summary,
)
from .runs import Run, read_run, report
from .tokenizer import Tokenizer
from .trainer import Trainer, plan, train

if TYPE_CHECKING:
    from .optimizer import Optimizer as Optimizer

__version__: str = _abi.HYBRID_VERSION

__all__ = [
    "Answer",
    "Config",
    "ConfigKey",
    "DeviceError",
    "Error",
    "EvalInfo",
    "FileError",
    "Generated",
    "Generator",
    "GeneratorFacts",
    "GeneratorState",
    "InputError",
    "InternalError",
    "Loop",
    "MemoryError_",
    "MemoryState",
    "NumericError",
    "PlanFacts",
    "RankInfo",
    "RanksInfo",
    "Request",
    "Run",
    "RunEvent",
    "RunFacts",
    "RunPoint",
    "Sampling",
    "Saving",
    "StateError",
    "Step",
    "StepInfo",
    "Stopped",
    "Summary",
    "Tokenizer",
    "Trainer",
    "chunked_cross_entropy",
    "find_rank",
    "generate",
    "plan",
    "plan_parameters",
    "read_run",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    """Optimizer is a class of torch, which is imported only if it is used."""
    if name != "Optimizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .optimizer import Optimizer

    return Optimizer
