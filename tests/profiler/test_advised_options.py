"""Options that the advice names exist in torch, under that name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.distributed.checkpoint
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from rankscope.analysis.verdict.advice_table import TABLE

TAKES: dict[str, Callable[..., Any]] = {
    "num_workers": DataLoader.__init__,
    "prefetch_factor": DataLoader.__init__,
    "persistent_workers": DataLoader.__init__,
    "pin_memory": DataLoader.__init__,
    "bucket_cap_mb": DistributedDataParallel.__init__,
    "find_unused_parameters": DistributedDataParallel.__init__,
    "static_graph": DistributedDataParallel.__init__,
    "reshard_after_forward": fully_shard,
    "forward_prefetch": FullyShardedDataParallel.__init__,
}
HAS: dict[str, object] = {
    "torch._inductor.config._micro_pipeline_tp": torch._inductor.config,
    "no_sync": DistributedDataParallel,
    "set_modules_to_forward_prefetch": FSDPModule,
    "set_modules_to_backward_prefetch": FSDPModule,
    "SHARD_GRAD_OP": ShardingStrategy,
    "torch.autocast": torch,
    "torch.amp.GradScaler": torch.amp,
    "torch.compile": torch,
    "torch.set_float32_matmul_precision": torch,
    "torch.utils.checkpoint": torch.utils,
    "torch.cuda.memory._record_memory_history": torch.cuda.memory,
    "torch.distributed.checkpoint.async_save": torch.distributed.checkpoint,
}
ACTIONS = " ".join(action for row in TABLE for action in row.actions)


@pytest.mark.parametrize("name", TAKES)
def test_advised_option_is_a_parameter_of_the_named_callable(name: str) -> None:
    assert name in ACTIONS
    assert name in inspect.signature(TAKES[name]).parameters


@pytest.mark.parametrize("name", HAS)
def test_advised_name_exists(name: str) -> None:
    assert name in ACTIONS
    assert hasattr(HAS[name], name.rpartition(".")[2])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_advised_sharding_optimizer_exists() -> None:
    assert "ZeroRedundancyOptimizer" in ACTIONS
    assert hasattr(importlib.import_module("torch.distributed.optim"), "ZeroRedundancyOptimizer")
