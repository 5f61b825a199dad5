# SPDX-License-Identifier: Apache-2.0
"""The table of forms in which a model is written for other programs; a row here adds a form.

Nothing here imports numpy: ``hedgerow export --help`` lists the forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hedgerow.plan.registry import Registry


@dataclass(frozen=True)
class Format:
    """A form of a model for another program.

    Attributes:
        about: what it is, for a person.
        ending: of its file's name.
        reader: Python that reads it, of the file `path`, and of `kind`, "Classifier" or "Regressor".
        encode: the file's bytes, of a `Model`; raises ModelError for one that cannot have this form.
        is_clipped: whether its predictions of numbers end at the bounds of Hedgerow's.
    """

    about: str
    ending: str
    reader: str
    encode: Callable[[Any], bytes]
    is_clipped: bool = False


FORMATS: Registry[Format] = Registry("format")
FORMATS["xgboost"] = Format(
    "its JSON",
    "xgboost.json",
    "xgboost.Booster().load_model({path!r})",
    # XGBoost reads UTF-8 and no escapes.
    lambda model: json.dumps(model.to_xgboost(), ensure_ascii=False, allow_nan=False).encode(),
)
FORMATS["onnx"] = Format(
    "a graph for onnxruntime",
    "onnx",
    "onnxruntime.InferenceSession({path!r})",
    lambda model: bytes(model.to_onnx().SerializeToString()),
    is_clipped=True,
)
FORMATS["ebm"] = Format(
    "InterpretML's JSON, of additive models",
    "ebm.json",
    "interpret.glassbox.ExplainableBoosting{kind}()._from_json({path!r})",
    lambda model: json.dumps(model.to_ebm(), allow_nan=False).encode(),
)
