"""The tensors of a Llama as Hugging Face names and shapes them."""

from crowfly_worker.formats.config import ModelConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def in_layer(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}.weight"


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that the network needs."""
    embedding = (config.vocab_size, config.hidden_size)
    tensors: dict[str, Shape] = {EMBEDDING: embedding, NORM: (config.hidden_size,)}
    if not config.tie_embeddings:
        tensors[HEAD] = embedding
    for layer in range(config.layers):
        tensors |= {in_layer(layer, part): shape for part, shape in _layer(config).items()}
    return tensors


def _layer(config: ModelConfig) -> dict[str, Shape]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
