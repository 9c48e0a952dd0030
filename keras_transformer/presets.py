"""Configurations by name: the paper's base and big, every row of its Table 3, two small ones.

`python -m keras_transformer.presets` prints them as a table.
"""

from __future__ import annotations

from typing import Any

from keras_transformer.config import Config, require


def _table3() -> dict[str, tuple[str, dict[str, Any]]]:
    """Rows of the paper's Table 3: name → (base preset, what differs from it)."""
    rows: dict[str, dict[str, Any]] = {}
    for heads in (1, 4, 16, 32):
        rows[f"A_h{heads}"] = {"model.num_heads": heads}
    for key_dim in (16, 32):
        rows[f"B_dk{key_dim}"] = {"model.key_dim": key_dim}
    for layers in (2, 4, 8):
        rows[f"C_n{layers}"] = {
            "model.num_encoder_layers": layers,
            "model.num_decoder_layers": layers,
        }
    for d_model, dim in ((256, 32), (1024, 128)):
        rows[f"C_d{d_model}"] = {
            "model.d_model": d_model,
            "model.key_dim": dim,
            "model.value_dim": dim,
        }
    for d_ff in (1024, 4096):
        rows[f"C_ff{d_ff}"] = {"model.d_ff": d_ff}
    for rate in (0.0, 0.2):
        rows[f"D_dropout{rate}"] = {
            "model.embedding_dropout": rate,
            "model.residual_dropout": rate,
        }
    for smoothing in (0.0, 0.2):
        rows[f"D_smoothing{smoothing}"] = {"training.label_smoothing": smoothing}
    rows["E_learned"] = {"model.positions": "learned"}
    return {name: ("base", changes) for name, changes in rows.items()}


_PRESETS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "tiny": (
        "base",
        {
            "model.num_encoder_layers": 4,
            "model.num_decoder_layers": 4,
            "model.d_model": 128,
            "model.d_ff": 256,
            "model.num_heads": 4,
            "training.batch_tokens": 4096,
            "training.warmup_steps": 2000,
        },
    ),
    "small": (
        "base",
        {
            "model.num_encoder_layers": 3,
            "model.num_decoder_layers": 3,
            "model.d_model": 256,
            "model.d_ff": 1024,
            "model.num_heads": 4,
            "training.batch_tokens": 4096,
            "training.warmup_steps": 4000,
        },
    ),
    "base": (None, {}),
    "big": (
        "base",
        {
            "model.d_model": 1024,
            "model.d_ff": 4096,
            "model.num_heads": 16,
            "model.embedding_dropout": 0.3,
            "model.residual_dropout": 0.3,
            "training.max_steps": 300_000,
            "training.keep_checkpoints": 20,
        },
    ),
    **_table3(),
}

# Millions of parameters as the paper's Table 3 prints them; rows it leaves blank equal base.
PAPER_MILLIONS: dict[str, int] = {
    "base": 65,
    "B_dk16": 58,
    "B_dk32": 60,
    "C_n2": 36,
    "C_n4": 50,
    "C_n8": 80,
    "C_d256": 28,
    "C_d1024": 168,
    "C_ff1024": 53,
    "C_ff4096": 90,
    "big": 213,
}

PRESET_NAMES: tuple[str, ...] = tuple(_PRESETS)


def preset(name: str) -> Config:
    """Returns the configuration of that name; `PRESET_NAMES` lists them.

    Raises:
        InputError: for a name that is no preset.
    """
    require(name in _PRESETS, f"{name!r} is no preset; expected one of {', '.join(PRESET_NAMES)}")
    parent, changes = _PRESETS[name]
    return (preset(parent) if parent else Config()).updated(changes)


def _print_table() -> None:
    columns = "name N d_model d_ff h d_k d_v P_drop eps_ls positions params_M paper_M".split()
    print("".join(f"{column:>11}" if i else f"{column:<16}" for i, column in enumerate(columns)))
    for name in PRESET_NAMES:
        config = preset(name)
        m = config.model
        row = (
            m.num_encoder_layers, m.d_model, m.d_ff, m.num_heads, m.key_dim, m.value_dim,
            m.residual_dropout, config.training.label_smoothing, m.positions,
            f"{m.num_parameters() / 1e6:.1f}", PAPER_MILLIONS.get(name, "-"),
        )  # fmt: skip
        print(f"{name:<16}" + "".join(f"{value!s:>11}" for value in row))


if __name__ == "__main__":
    _print_table()
