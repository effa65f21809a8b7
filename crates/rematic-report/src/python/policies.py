
from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import copy
import enum
import functools
import inspect
import itertools
import operator
import random
import sys
import threading
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint as checkpointing
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def save(*operators):
    return [(name, True) for name in operators]


def recompute(*operators):
    return [(name, False) for name in operators]


def skip(*operators):
    return [(name, None) for name in operators]  # nothing reads what they make again


# What is done with the operators of a module, in the order in which they run.
