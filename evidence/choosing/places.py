"""Strength, price and weakness of each operator, from claims and times in the committed results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..claims.rows import answers, judged, with_limits
from ..fields.claims import TITLES
from ..fields.models import GNO_OF_VALUES, WIDE
from ..kit.claims import CONTRADICTED, REPRODUCED
from ..kit.contest import EQUAL_STEPS, EQUAL_TIME
from ..kit.page import table
from ..physics.claims import ATTENTION

N = 1_024
"""Number of points of the compared times."""


class Words(NamedTuple):
    """Sentences about an operator.

    Attributes:
        concluded: what a claim with a conclusion says.
        open: what is seen in the runs and not concluded.
    """

    concluded: str = ""
    open: str = ""

    def __str__(self) -> str:
        parts = [self.concluded]
        if self.open:
            parts.append(f"*Open:* {self.open}")
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class Place:
    """Strength and weakness of an operator in words.

    Attributes:
        operator: its name in the page.
        ahead, behind: strength and weakness in a few words, for the README.
        strength, weakness: the same in sentences.
        strength_claims, weakness_claims: the claims that these sentences are about, of a results
            page (``"SET: TEXT"``) or of the page of all claims (``"claims: TEXT"``); the first is
            that of ``ahead`` or ``behind``, or an open one if only a table of the page shows these.
        timed: its name in the file of times; empty if it was not timed.
        price: a sentence on its cost, if it was not timed.
    """

    operator: str
    ahead: str
    behind: str
    strength: Words
    strength_claims: tuple[str, ...]
    weakness: Words
    weakness_claims: tuple[str, ...]
    timed: str = ""
    price: str = ""


FIRST = "physics: Charges, {} particles{}, equal steps: ITNet is ahead of {}"
DESIGNS = "designs: Charges, designs searched, {} particles{}, {}: ITNet is ahead of {}"
FIELDS = "fields: Darcy's flow, {}, {}: ITNet is ahead of {}"
FINER = "32 × 32, not used in training"
GRAVITY = "motion: Gravity, 8 bodies, {}, {}: ITNet is ahead of {}"
ROLLOUT, STEP = "rollout of 50 steps", "one step"
NETWORK = "an interaction network"
HIDDEN = "luna-encoders: Hidden words, {} tokens, {}: LUNA above {}"
IRREGULAR = "irregular: {}, irregular times, {}: a CKCNN is ahead of {}"
OTHERS = "the best of GRU-D, a neural CDE and MiniROCKET on interpolated series"
RATE = "ckconv: {}, rate {}: ahead of a GRU and a TCN that read series resampled to the rate of training"
PLATEAU = "plateau: {}: trained with 2 to 8 steps, {} instead of 4 cost the {} model little"
DEPTHS = "evolution: Pictures, {0} steps: one set of weights costs little beside an encoder of {0} layers"
FIXED = "evolution: Pictures, {0} steps: one set of weights costs little beside one trained with {0} steps alone"
LOW_RANK = "itnet: {}: low rank beats {} at equal parameters"
CANVASES = "canvases: All canvases: {}"
SMALL_PATCHES = "infsa-contests: {} patches, equal time: linear InfSA is more accurate than {}"
STORED = "claims: 13 times faster than softmax at 4,096 tokens (softmax of a stored N × N matrix, as in the paper)"
AGENT = (
    "claims: Faster than Agent Attention, one of the two fastest O(Nd) baselines of the paper (the other, "
    "SOFT, has no package)"
)
FUSED = "claims: The same beside a fused softmax, which stores no matrix"
MEMORY = "claims: The memory of the linear form grows no faster than N (exponent)"
PLACES = (
    Place(
        "itnet",
        "FNO of its size (Darcy, equal steps)",
        "relative attention (gravity)",
        Words(
            "On pressures in random media, trained at 16 × 16, it is ahead of neuraloperator's "
            "Fourier neural operator of its size at equal steps, also at 32 × 32, never used in "
            "training. It takes many times as long, and more settings of it were tried.",
            "There it is also ahead of softmax attention and of a graph neural operator whose kernel reads "
            "values. Its mean is better than that of the plain graph neural operator and of a Fourier "
            "operator with ten times the parameters. On bodies under gravity, at equal steps, it is ahead of "
            "softmax attention with absolute positions, and its mean is better than an interaction network's "
            "in rollouts. On forces between 8 charges, where the designs of all models were searched, its mean is "
            "better than those of attention with relative positions and of an interaction network at equal "
            "steps.",
        ),
        (
            FIELDS.format("16 × 16", EQUAL_STEPS, TITLES["fno"]),
            FIELDS.format("16 × 16", EQUAL_STEPS, TITLES["gno"]),
            FIELDS.format(FINER, EQUAL_STEPS, TITLES["fno"]),
            FIELDS.format(FINER, EQUAL_STEPS, TITLES["gno"]),
            FIELDS.format("16 × 16", EQUAL_STEPS, TITLES[GNO_OF_VALUES]),
            FIELDS.format("16 × 16", EQUAL_STEPS, TITLES["softmax"]),
            FIELDS.format("16 × 16", EQUAL_STEPS, TITLES[WIDE]),
            GRAVITY.format(ROLLOUT, EQUAL_STEPS, NETWORK),
            GRAVITY.format(STEP, EQUAL_STEPS, "softmax attention"),
            DESIGNS.format(8, "", EQUAL_STEPS, ATTENTION),
            DESIGNS.format(8, "", EQUAL_STEPS, NETWORK),
        ),
        Words(
            "On 8 bodies under gravity attention with relative positions and EGNN are ahead in single "
            "steps. On charges EGNN, whose forces turn with the system, has much smaller errors, and ITNet's "
            "first kernel, with absolute positions, is behind an interaction network.",
            "On Darcy's flow the Fourier operator and softmax attention are ahead at equal time, and "
            "no difference from the graph neural operator was found. ITNet's settings were searched there. Without "
            "such a search its errors on such fields are much larger than softmax's (*field*, below; *darcy* of "
            "[ten sets](results/ten-sets.md), one seed). Under gravity attention with relative "
            "positions is ahead in rollouts too, and at equal time an interaction network. On charges an "
            "interaction network has a better mean at equal time, and with 12 charges, never seen in training.",
        ),
        (
            GRAVITY.format(STEP, EQUAL_STEPS, ATTENTION),
            DESIGNS.format(8, "", EQUAL_STEPS, "EGNN"),
            FIRST.format(8, "", NETWORK),
            DESIGNS.format(12, ", never seen", EQUAL_STEPS, NETWORK),
            DESIGNS.format(8, "", EQUAL_TIME, NETWORK),
            GRAVITY.format(STEP, EQUAL_STEPS, "EGNN"),
            GRAVITY.format(ROLLOUT, EQUAL_STEPS, ATTENTION),
            GRAVITY.format(ROLLOUT, EQUAL_TIME, NETWORK),
            FIELDS.format("16 × 16", EQUAL_TIME, TITLES["fno"]),
            FIELDS.format("16 × 16", EQUAL_TIME, TITLES["softmax"]),
            FIELDS.format("16 × 16", EQUAL_TIME, TITLES["gno"]),
        ),
        "itnet",
    ),
    Place(
        "itnet_low_rank",
        "Performer, on digits",
        "softmax (long sums)",
        Words(
            open="ITNet's kernel for many points. On handwritten digits it is ahead of Performer "
            "and of softmax attention of its size, each at the best of two or three rates; its own "
            "is the largest that was tried. On the digits of another recipe (*by data*, below), with two "
            "seeds, no difference from softmax was found. On clothes it is ahead of linear attention.",
        ),
        (
            LOW_RANK.format("Digits", "performer"),
            LOW_RANK.format("Digits", "softmax"),
            LOW_RANK.format("Clothes", "linear attention"),
        ),
        Words(
            open="On clothes no difference from Performer and softmax was found, with its own rate at the largest "
            "of five. On a long sum (*long*, below) it stays at a constant answer in all seeds, where softmax "
            "solves the task. On digits and clothes (*by data*, below) a convolution has a better mean. Accuracy "
            "grows with the rank (16 against 2 a head), so a low rank costs some of it.",
        ),
        (
            "itnet: Accuracy grows with the rank",
            LOW_RANK.format("Clothes", "performer"),
            LOW_RANK.format("Clothes", "softmax"),
        ),
        "itnet_low_rank",
    ),
    Place(
        "ckconv",
        "recurrences, at exact lags",
        "GRU-D or MiniROCKET, on bursts",
        Words(
            "On bits at exact lags in irregular times, a task made for a convolution, its network "
            "(CKCNN) is ahead of GRU-D and a neural CDE.",
            "A TCN on a grid is its best rival there, and is behind. Series at half the rate of "
            "training with the same weights: on PLAID it is ahead (the TCN there reads less than "
            "half of the longest series); on JapaneseVowels no difference from a TCN that reads them "
            "interpolated was found.",
        ),
        (
            IRREGULAR.format("Lags", EQUAL_TIME, "the best of GRU-D and a neural CDE"),
            IRREGULAR.format("Lags", EQUAL_STEPS, OTHERS),
            IRREGULAR.format("Lags", EQUAL_TIME, "a TCN on a grid"),
            RATE.format("PLAID", "1 → 1/2"),
        ),
        Words(
            "Bursts of samples at irregular times: the best of GRU-D, a neural CDE and MiniROCKET "
            "is ahead on JapaneseVowels and on PLAID.",
            "On PLAID it is behind a TCN on resampled series at twice the rate of training, and it loses more "
            "than a GRU without gaps when most samples are lost. On complete series of PLAID MiniROCKET, and a GRU "
            "and a TCN without gaps, [have better means](results/ckconv.md). On permuted pixels a TCN is ahead.",
        ),
        (
            IRREGULAR.format("JapaneseVowels", EQUAL_STEPS, OTHERS),
            IRREGULAR.format("PLAID", EQUAL_STEPS, OTHERS),
            IRREGULAR.format("PLAID", EQUAL_TIME, "the best of GRU-D and a neural CDE"),
            RATE.format("PLAID", "1/2 → 1"),
            "ckconv: missing data costs less than GRUs and TCNs lose (PLAID, 70% lost)",
            "ckconv: pMNIST at 14 x 14: the small network is ahead of TCN, LSTM, GRU",
        ),
        "ckconv",
    ),
    Place(
        "luna",
        "Performer (small pictures)",
        "`linear_attention`, in time",
        Words(
            "Pictures of 16 × 16 pixels read as tokens: its learned features are ahead of Performer's random "
            "ones, both beside a convolution and at the larger of two rates. Hidden words in texts of 512 "
            "tokens: at equal steps it is ahead of Hedgehog with the rate of the least loss in validation. An "
            "encoder of 8,192 tokens takes about a tenth of softmax's time.",
            "No difference was found from Hedgehog with the rate of the best accuracy in validation, from softmax "
            "on texts of 8,192 tokens, and from softmax on the pictures.",
        ),
        (
            "lra-image: Image: learned kernels above Performer's random features, the rate of each by validation",
            HIDDEN.format("512", EQUAL_STEPS, "Hedgehog"),
            HIDDEN.format("512", EQUAL_STEPS, "Hedgehog at a rate of 0.01"),
            "claims: An encoder of 8,192 tokens takes less time with LUNA than with softmax (the ratio)",
            HIDDEN.format("8,192", EQUAL_STEPS, "softmax"),
            "lra-image: Image: LUNA above softmax, a convolution beside both",
        ),
        Words(
            open="Linear attention with elu + 1 takes less time: it is ahead at equal time, and no "
            "difference from it was found at equal steps. At equal time no difference from "
            "Hedgehog was found at 512 tokens, and at 8,192 Hedgehog is ahead. On bytes of "
            "text (128 of each) one seed of softmax is better.",
        ),
        (
            HIDDEN.format("512", EQUAL_TIME, "elu + 1"),
            HIDDEN.format("512", EQUAL_STEPS, "elu + 1"),
            HIDDEN.format("512", EQUAL_TIME, "Hedgehog"),
            HIDDEN.format("8,192", EQUAL_TIME, "Hedgehog"),
            "lra: Text: LUNA above softmax",
        ),
        "luna",
    ),
    Place(
        "infsa",
        "not decided",
        "softmax (8 epochs)",
        Words(
            open="An article of clothing among fragments of others, on canvases of 42 × 42 pixels "
            "(36 patches): trained for 20 epochs, its mean is better than softmax's.",
        ),
        (CANVASES.format("pure InfSA is more accurate than softmax"),),
        Words(
            "On the same canvases, trained for 8 epochs with ten fresh seeds, it is behind softmax.",
            "No difference was found in how well its attention maps and softmax's find the object.",
        ),
        (
            "infsa-contests: All canvases, ten fresh seeds, 8 epochs: pure InfSA is more accurate than softmax",
            CANVASES.format("ROC-AUC: pure above softmax"),
        ),
        "infsa",
    ),
    Place(
        "linear_infsa",
        "softmax, in time",
        "`linear_attention`, small patches",
        Words(
            "Four wide blocks take, at 4,096 tokens, a small part of the time of a softmax that stores its "
            "matrix, as the paper's does, and less than with [other linear attentions](results/infsa.md). In training "
            "its memory grows with the number of tokens, not with its square.",
            "On canvases of 36 patches no difference in accuracy from softmax was found.",
        ),
        (
            STORED,
            AGENT,
            MEMORY,
            CANVASES.format("linear InfSA is more accurate than softmax"),
        ),
        Words(
            "A fused softmax takes about four times as long there, not 13 times.",
            "It is slow to begin: on canvases of 256 and of 1,024 small patches most of its runs are still "
            "at chance when linear attention and softmax, in the same time, have begun to learn. At 1,024 patches "
            "these runs have 6,000 steps, at a rate that was chosen with one seed, which did learn. By LeRF its "
            "attention maps are less faithful than softmax's, by MoRF no difference was found.",
        ),
        (
            SMALL_PATCHES.format("256", "linear attention"),
            SMALL_PATCHES.format("1,024", "linear attention"),
            FUSED,
            SMALL_PATCHES.format("256", "softmax"),
            SMALL_PATCHES.format("1,024", "softmax"),
            CANVASES.format("LeRF: linear above softmax"),
            CANVASES.format("MoRF: linear above softmax"),
        ),
        "linear_infsa",
    ),
    Place(
        "evolution",
        "one set of weights serves 4 to 16 steps",
        "4 layers, trained as long, win",
        Words(
            "One set of weights for several numbers of time steps. On pictures of clothes it costs "
            "little, or nothing, beside separate encoders of 4, 8 and 16 layers that are trained for as many epochs. (Those of 8 and 16 "
            "have two and four times as many parameters and are weak rivals: they are worse than "
            "that of 4.) On sentences, for which 2 layers suffice, 2 and 16 steps cost little "
            "beside 4.",
            "Models of the same form that are trained with 8 or 16 steps alone have better means, by less "
            "than a point.",
        ),
        (
            DEPTHS.format(4),
            DEPTHS.format(8),
            DEPTHS.format(16),
            FIXED.format(8),
            FIXED.format(16),
            PLATEAU.format("Sentences", 2, "pre-norm"),
            PLATEAU.format("Sentences", 16, "pre-norm"),
        ),
        Words(
            "Strang splitting, which evaluates attention four times per step and the network "
            "twice, is behind Lie splitting at 8 evaluations of attention.",
            "On clothes an encoder of 4 layers that is trained for as long, and so for more epochs, is "
            "ahead by about two points. 2 steps have a lower mean than an encoder of 2 layers. On handwritten "
            "digits, trained with 2 to 8 steps, 16 steps have a lower mean than 4.",
        ),
        (
            DEPTHS.format(4) + " trained for as long",
            DEPTHS.format(2),
            "evolution: Pictures, 8 evaluations of attention: Strang, 2 steps, is ahead of Lie, 8 steps",
            "continuous: other schemes make better models: Strang against Lie",
            PLATEAU.format("Pictures", 16, "pre-norm"),
        ),
        price="[A step](splitting.md) takes about as long as a layer of an encoder, and in training one "
        "set of weights takes all the steps that are drawn (9 on average, from 2 to 16).",
    ),
)


class Shown(NamedTuple):
    """A claim's text, its number here, its verdict and the limits of the verdict."""

    text: str
    here: str
    verdict: str
    limits: str


def shown(name: str) -> Shown:
    """Return what is shown of a claim of a results page or of the page of all claims."""
    page, _, text = name.partition(": ")
    if page == "claims":
        row = answers()[text]
        return Shown(text, row.here, row.verdict, row.limits)
    one = judged()[name]
    return Shown(one.result.claim.text, one.result.here, one.verdict, one.limits)


def concluded(name: str) -> bool:
    """Return whether a claim has a conclusion."""
    return shown(name).verdict in (REPRODUCED, CONTRADICTED)


def in_few_words(place: Place) -> tuple[str, str]:
    """Return ``ahead`` and ``behind``, in italics unless their first claim is a conclusion."""
    words = []
    for text, claims in (
        (place.ahead, place.strength_claims),
        (place.behind, place.weakness_claims),
    ):
        words.append(text if concluded(claims[0]) else f"*{text}*")
    ahead, behind = words
    return ahead, behind


def places(speed: dict[str, Any] | None) -> str:
    """Return a part for each operator: strength, price, weakness, and the claims that show them."""
    return "\n\n".join(_part(place, speed) for place in PLACES)


def _part(place: Place, speed: dict[str, Any] | None) -> str:
    """Return the part of one operator."""
    lines = [_line("for it", name) for name in place.strength_claims]
    lines += [_line("against it", name) for name in place.weakness_claims]
    words = [f"- *For it.* {place.strength}", f"- *Against it.* {place.weakness}"]
    if price := place.price or _price(place.timed, speed):
        words.append(f"- *Its price.* {price}")
    parts = (
        f"### {place.operator}",
        "\n".join(words),
        table(("", "claim", "here", "verdict"), lines),
    )
    return "\n\n".join(parts)


def _line(side: str, name: str) -> tuple[str, ...]:
    """Return the line of a claim: its text, number and verdict."""
    one = shown(name)
    return side, one.text, one.here, with_limits(one.verdict, one.limits)


def _price(operator: str, speed: dict[str, Any] | None) -> str:
    """Return a sentence with an operator's time relative to softmax attention's."""
    if not operator or not speed:
        return ""
    times: dict[str, dict[int, float]] = {}
    for curve in speed["scaling"]:
        if curve["direction"] == "step":
            times[curve["operator"]] = dict(zip(curve["lengths"], curve["milliseconds"]))
    ratio = times[operator][N] / times[speed["reference"]][N]
    return (
        f"At N = {N:,} and width {speed['dim']}, a forward and backward pass takes {ratio:.2g} times "
        "as long as softmax's, on two threads of a CPU."
    )
