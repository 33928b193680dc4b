"""The formulas for the one model that the reader can measure: the course's small GPT."""

from course_lib.costs.flops import activation_bytes
from course_lib.facts import Shape
from course_lib.reference import GPTConfig


def shape_of(config: GPTConfig) -> Shape:
    """The shape of the course's small GPT."""
    return Shape(config.num_layers, config.hidden_size, config.num_heads, config.num_heads, 4 * config.hidden_size,
                 config.vocab_size, config.sequence_length, tied=True, learned_positions=True, biases=True,
                 source="course_lib.reference", date="2026")


def small_gpt_activation_bytes(config: GPTConfig, batch_size: int) -> int:
    """What the course's GPT keeps, in fp32 and without dropout, to the byte.

    The formula of the paper rounds: it leaves out the mean and the deviation that each normalisation keeps of each
    token (8 bytes), the token numbers, and the inputs of the loss.
    """
    s = config.sequence_length
    # A mean and a deviation of 4 bytes for each token: two norms a layer, and the last one.
    statistics = (2 * config.num_layers + 1) * 8 * s * batch_size
    tokens_targets_positions = 8 * s * batch_size * 2 + 8 * s
    return activation_bytes(shape_of(config), batch_size, s, bytes_per_number=4) + statistics + tokens_targets_positions
