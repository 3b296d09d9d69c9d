"""Compare answers of tiny random models of each decoder type of transformers with those of its generate.

    python -m reference.zoo [NAME...]

Each model is decoded in float64 by the executor that `benchctl run` chooses, plainly, by prompt lookup, and by a draft
model as a chain and as a tree; models of our own layers are decoded by transformers' too. Windows and chunks end within
the texts. Without names the table in docs/models.md and results/reference/zoo.json are written. The exit code is 1
where an answer differs, or another model than those in REFUSED is refused.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

from benchctl import bundled
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Speculative, UsesDraftModel
from benchctl.decoding.model.opaque import check_opaque
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.errors import UserError
from benchctl.measuring.run import model_store
from benchctl.registry import build

VOCABULARY, NEW_TOKENS, LAYERS = 4096, 40, 4
LABELS = {
    "plain": "autoregressive",
    "lookup": "prompt_lookup",
    "draft model": "two_model[draft_tokens=3,confidence=0]",
    "tree": "draft_tree[nodes=6,confidence=0]",
}
NOISE = 0.1  # of the draft model's weights, which are those of the target but for this share
IDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 5, "pad_token_id": 1}
USUAL: dict[str, Any] = {
    **IDS,
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False},
}
GPT: dict[str, Any] = {**IDS, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 512}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "topk_group": 1},
}
LATENT = {
    **{"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16},
    **{"qk_nope_head_dim": 16, "v_head_dim": 16},
}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "head_dim": 32,
}
WINDOW = {"sliding_window": 16}
TURNS = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
TIED = {"tie_word_embeddings": True}
FACTORS = {
    **{"embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    **{"attention_multiplier": 0.0156, "logits_scaling": 8.0},
}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 64, "rope_theta": 500000.0},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256}
VISION = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}
# Name -> model type and the settings it adds to the usual ones.
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": LLAMA3}),
    "llama, tied": ("llama", {"rope_parameters": LLAMA3, **TIED}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("mistral", WINDOW),
    "mixtral": ("mixtral", LOCAL),
    "ministral3": ("ministral3", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2, **WINDOW}),
    "qwen2_moe": ("qwen2_moe", {"shared_expert_intermediate_size": 64, **EXPERTS}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 32, "norm_topk_prob": True, **EXPERTS}),
    "gemma": ("gemma", {"head_dim": 32, "num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh", **TIED}),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, **WINDOW, **TIED}),
    "gemma3_text": ("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 32, **TURNS, **TIED}),
    "gemma3n_text": (
        "gemma3n_text",
        {
            **{"head_dim": 32, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16},
            **{"intermediate_size": [128] * LAYERS, "num_kv_shared_layers": 2, "laurel_rank": 8},
            **{"altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * LAYERS, **TURNS, **TIED},
        },
    ),
    "gemma4_text": (
        "gemma4_text",
        {
            **{"head_dim": 32, "global_head_dim": 32, "hidden_size_per_layer_input": 16},
            **{"vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0, **TURNS, **TIED},
        },
    ),
    "phi": ("phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {}),
    "phi3, longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": {**LONG, "short_factor": [1.1] * 8, "long_factor": [2.3] * 8},
        },
    ),
    "phimoe": ("phimoe", LOCAL),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", TURNS),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "granite": ("granite", FACTORS),
    "granitemoe": ("granitemoe", {**LOCAL, **FACTORS}),
    "granitemoehybrid, attention alone": (
        "granitemoehybrid",
        {
            **{"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 128},
            "layer_types": ["attention"] * LAYERS,
        },
    ),
    "glm4": ("glm4", {"head_dim": 16, "partial_rotary_factor": 0.5}),
    "glm4_moe": ("glm4_moe", {"head_dim": 16, "n_group": 1, **ROUTED}),
    "cohere": ("cohere", {"logit_scale": 0.25}),
    "cohere2": ("cohere2", {"logit_scale": 0.25, **TURNS}),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "bias": False}),
    "falcon, one key head": ("falcon", {"multi_query": True, "parallel_attn": True, "alibi": False, "bias": False}),
    "opt": ("opt", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "gpt2": ("gpt2", GPT),
    "gpt_neox": ("gpt_neox", {}),
    "gptj": ("gptj", {**GPT, "rotary_dim": 8}),
    "gpt_bigcode": ("gpt_bigcode", GPT),
    "gpt_oss": ("gpt_oss", {"head_dim": 16, **LOCAL, **TURNS}),
    "deepseek_v2": ("deepseek_v2", {**LATENT, **ROUTED}),
    "deepseek_v3": ("deepseek_v3", {"n_group": 2, **LATENT, **ROUTED}),
    "llama4_text": (
        "llama4_text",
        {
            **{"head_dim": 16, "intermediate_size_mlp": 128, "num_local_experts": 4, "num_experts_per_tok": 1},
            **{"interleave_moe_layer_step": 1, "attention_chunk_size": 64},
        },
    ),
    "nemotron": ("nemotron", {"head_dim": 16}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.25}),
    "starcoder2": ("starcoder2", {"use_bias": True, **WINDOW}),
    "exaone4": ("exaone4", TURNS),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {}),
    "seed_oss": ("seed_oss", {"head_dim": 16}),
    "minimax_m2": ("minimax_m2", {"head_dim": 16, **LOCAL}),
    "bloom": ("bloom", {**IDS, "hidden_size": 64, "n_layer": LAYERS, "n_head": 4}),
    "mpt": ("mpt", {**IDS, "d_model": 64, "n_layers": LAYERS, "n_heads": 4, "max_seq_len": 512}),
    "gemma3, with images": (
        "gemma3",
        {"text_config": {**USUAL, "head_dim": 16, **TURNS, **TIED}, "vision_config": VISION, "mm_tokens_per_image": 4},
    ),
    "llava, with images": ("llava", {"text_config": {**USUAL, "model_type": "llama"}}),
    "qwen3_next": ("qwen3_next", {"shared_expert_intermediate_size": 64, **LINEAR, **EXPERTS}),
    "qwen3_5_text": ("qwen3_5_text", LINEAR),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {"shared_expert_intermediate_size": 64, **LINEAR, **EXPERTS}),
    "qwen3_5, with images": ("qwen3_5", {"text_config": {**USUAL, **LINEAR}}),
    "lfm2": ("lfm2", {"block_ff_dim": 128, "layer_types": ["conv", "full_attention"] * (LAYERS // 2)}),
    "mamba2": (
        "mamba2",
        {
            **IDS,
            **{"hidden_size": 64, "num_hidden_layers": LAYERS, "state_size": 16, "num_heads": 8, "head_dim": 16},
            **{"expand": 2, "n_groups": 1, "chunk_size": 16},
        },
    ),
    "t5": (
        "t5",
        {
            **IDS,
            **{"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4},
            **{"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 1, **TIED},
        },
    ),
    "bart": (
        "bart",
        {
            **IDS,
            **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128},
            **{"decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
        },
    ),
}
REFUSED = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5, with images", "lfm2", "mamba2", "bart"}
OWN_SIZES = ("n_embd", "d_model", "text_config", "n_layer", "state_size")  # settings without the usual ones


def build_model(kind: str, settings: dict[str, Any]) -> Any:
    """A random model in float64, whose answers vary: weights of transformers' own size repeat one token."""
    usual = IDS if "text_config" in settings else USUAL
    whole = settings if any(name in settings for name in OWN_SIZES) else {**usual, **settings}
    config: Any = transformers.CONFIG_MAPPING[kind](**whole)
    config.dtype = torch.float64
    loader: Any = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        loader = transformers.AutoModelForSeq2SeqLM
    elif type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        loader = transformers.AutoModelForImageTextToText
    options = {} if config.is_encoder_decoder else {"experts_implementation": "eager"}  # others lack float64
    model = loader.from_config(config, **options).double().eval()
    generator = torch.Generator().manual_seed(0)
    tied = bool(getattr(config.get_text_config(), "tie_word_embeddings", False))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            if weight.ndim >= 2:
                embeds = any(part in name for part in ("embed", "wte", "shared"))
                weight.copy_(noise * ((0.05 if tied else 1.0) if embeds else 1.3 / weight.shape[-1] ** 0.5))
            elif name.endswith("bias") or "sink" in name:
                weight.copy_(noise * 0.2)
            else:
                weight.add_(noise * 0.1)
    return model


def save(model: Any, folder: Path, changed: float = 0.0) -> str:
    """Save a model, its weights changed by this share, with a tokenizer of its vocabulary."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters() if changed else ():
            weight.mul_(1 + changed * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    model.generation_config = transformers.GenerationConfig(eos_token_id=5)  # type: ignore[no-untyped-call]
    if model.config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 1
    model.save_pretrained(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(bundled.resolve("ref-dense")))
    tokenizer.save_pretrained(folder)
    return str(folder)


def prompts() -> Iterator[list[int]]:
    """Random texts that end as they began, so that looking up finds something."""
    generator = torch.Generator().manual_seed(3)
    for length in (40, 33):
        text = torch.randint(6, VOCABULARY, (length,), generator=generator).tolist()
        yield text + text[:12]


def executor_of(folder: str) -> str:
    """The executor that `benchctl run` chooses. Raises UserError where there is none."""
    tokenizer = load_tokenizer(folder)
    try:
        tokenizer.check_layers()
    except UserError:
        check_opaque(tokenizer.config)
        return "transformers"
    return "static"


@torch.inference_mode()
def generated(model: Any, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False)[0]
    return [int(token) for token in out[1 if model.config.is_encoder_decoder else len(prompt) :]]


def answers(target: Target, draft: Target, label: str) -> list[list[int]] | None:
    """The answers to all prompts; None where a method cannot run on this target."""
    method = build(label)
    if isinstance(method, Speculative) and method.drafts_trees and not target.runs_trees:
        return None
    if target.encoder is not None and not method.supports_encoder_decoder:
        return None
    if isinstance(method, UsesDraftModel):
        method.use_draft_model(draft)
    method.prepare(target)
    return [list(decode(method, target, DecodeRequest(prompt, NEW_TOKENS)).token_ids) for prompt in prompts()]


def examine(name: str, folder: Path) -> dict[str, str]:
    """The row of one model: executor, and for each label whether answers equal those of generate."""
    kind, settings = ZOO[name]
    model = build_model(kind, settings)
    path = save(model, folder / "target")
    truth = [generated(model, prompt) for prompt in prompts()]
    draft_path = save(model, folder / "draft", NOISE)
    try:
        chosen = executor_of(path)
        executors = ["static"] if kind == "t5" else list(dict.fromkeys((chosen, "transformers")))
        row = {"model": name, "executor": chosen}
        for executor in executors:
            store = model_store("float64", "cpu", executor=executor)
            target, draft = store(path), store(draft_path)
            for column, label in LABELS.items():
                found = answers(target, draft, label)
                equal = "–" if found is None else "equal" if found == truth else "DIFFERS"
                row[column] = equal if row.get(column, equal) == equal else f"{row[column]}, {equal} by {executor}"
    except UserError as refusal:
        return {"model": name, "executor": "–", "refused": f"{refusal}."}
    return row


def table(rows: Sequence[dict[str, str]]) -> str:
    """Two tables in Markdown: models that run, and those that are refused, with the sentence that a user reads."""
    columns = ("model", "executor", *LABELS)
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(row[column] for column in columns) for row in rows if "refused" not in row]
    refused = ["model | refused", "--- | ---"]
    refused += [f"{row['model']} | {row['refused']}" for row in rows if "refused" in row]
    return "\n\n".join("\n".join(f"| {line} |" for line in part) for part in (lines, refused))


def main(*names: str) -> int:
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    rows = []
    for name in names or ZOO:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(examine(name, Path(folder)))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    if not names:
        record = {"versions": {each: version(each) for each in ("transformers", "torch")}, "rows": rows}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        Path("results/reference/zoo.json").write_text(text, encoding="utf-8")
        page = Path("docs/models.md")
        before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- zoo -->\n")
        _, end, after = rest.partition("<!-- end of zoo -->")
        page.write_text(f"{before}{begin}{table(rows)}\n{end}{after}", encoding="utf-8")
    refused = {row["model"] for row in rows if "refused" in row}
    differs = any("DIFFERS" in value for row in rows for value in row.values())
    return int(differs or refused != REFUSED & {row["model"] for row in rows})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
