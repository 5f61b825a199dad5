"""Older processors, as settings of the environment that switch parts of this one off."""

from __future__ import annotations

import platform

import numpy as np

OLDEST = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    "NUMBA_CPU_NAME": "nehalem",
    "NUMBA_CPU_FEATURES": "",
}
"""What BLAS, the C library and numba are told; NumPy refuses features that this processor does not have."""


def list_processors() -> list[dict[str, str]]:
    """Settings for a processor without AVX-512, and for one without AVX2 and fused multiplication either.

    None on a processor of another kind: there NumPy has other features, and BLAS other names.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[index]
    newest = [name for name in features if name.startswith(("AVX512", "X86_V4"))]
    without = {"OPENBLAS_CORETYPE": "Haswell"}
    return [
        {**without, **_disable(newest)},
        {**OLDEST, **_disable(features)},
    ]


def _disable(features: list[str]) -> dict[str, str]:
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(features)} if features else {}
