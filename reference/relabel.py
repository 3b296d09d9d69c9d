"""Copy a Llama folder as a model of a type that our own layers do not know: ministral3, which computes the same.

    python -m reference.relabel FOLDER OUT

So an engine is measured on real weights while transformers scores its answers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def main(source: str, out: str) -> int:
    folder = Path(shutil.copytree(source, out))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = dict(config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config["rope_theta"]})
    # Factors of ministral3's own for long texts, without effect.
    rope |= {"original_max_position_embeddings": config["max_position_embeddings"], "llama_4_scaling_beta": 0.0}
    config |= {"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]}
    config |= {"rope_parameters": rope, "sliding_window": None}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
