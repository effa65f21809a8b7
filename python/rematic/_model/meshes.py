"""The mesh of ranks that a model is spread over."""

from __future__ import annotations

from typing import Any

from torch import nn

from rematic._core import RematicError

from .wrapped import is_spread


def mesh_of(model: nn.Module) -> Any:
    """The mesh that a model's parameters lie on, with the axes that they are spread along; nothing if they are not spread."""
    whole: dict[str, Any] = {}
    widest: Any = None
    for name, parameter in model.named_parameters():
        if not is_spread(parameter):
            continue
        mesh = parameter.device_mesh  # type: ignore[attr-defined]
        root = mesh._get_root_mesh()
        if not any(root == other for other in whole.values()):
            whole[name] = root
        if widest is None or mesh.ndim > widest.ndim:
            widest = mesh
        elif not set(axes_of(mesh)) <= set(axes_of(widest)):
            widest = root
    if len(whole) > 1:
        (one, first), (other, second) = list(whole.items())[:2]
        raise RematicError(
            f"The model's parameters lie on {len(whole)} meshes: `{one}` on {first}, `{other}` on {second}; make one mesh with all "
            'axes, and spread each module along some of them, as mesh["dp"]'
        )
    return widest


def axes_of(mesh: Any) -> tuple[str, ...]:
    """The names of a mesh's axes."""
    return mesh.mesh_dim_names or tuple(f"dim{axis}" for axis in range(mesh.ndim))
