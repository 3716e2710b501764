"""Attention whose weight is an inner product of features, against a measure."""

from .band import Points, taken_by_row
from .banked import Banks, banked_attention
from .chunked import Moment, at_scale, guarded, linear_attention, over_new_factor, wants_pieces
from .decayed import decayed_attention, decayed_prefix_sums, largest_seen
from .naive import at_scale_of_seen, linear_attention_naive, linear_density, measured_density
from .pieces import attend_in_pieces
from .running import (
    JointFeatures,
    advance_moment,
    linear_attention_step,
    linear_attention_stretch,
    moment_of,
)
from .store import STORE, STORE_AGE, Store, begins_block
from .store_naive import stored_naive
from .window_decay import NEAR_AGE
from .window_step import step_window
from .window_stretch import Far, WindowSizes, vanishing
from .windowed import advance_window

__all__ = [
    "NEAR_AGE",
    "STORE",
    "STORE_AGE",
    "Banks",
    "Far",
    "JointFeatures",
    "Moment",
    "Points",
    "Store",
    "WindowSizes",
    "advance_moment",
    "advance_window",
    "at_scale",
    "at_scale_of_seen",
    "attend_in_pieces",
    "banked_attention",
    "begins_block",
    "decayed_attention",
    "decayed_prefix_sums",
    "guarded",
    "largest_seen",
    "linear_attention",
    "linear_attention_naive",
    "linear_attention_step",
    "linear_attention_stretch",
    "linear_density",
    "measured_density",
    "moment_of",
    "over_new_factor",
    "step_window",
    "stored_naive",
    "taken_by_row",
    "vanishing",
    "wants_pieces",
]
