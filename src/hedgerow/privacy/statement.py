# SPDX-License-Identifier: Apache-2.0
"""Sentences about one run: its promise, the parties to trust, and the limits of the promise.

Each sentence stands beside the condition under which it is true, and is made of the run's ledger, its context and where
it was made. Nothing else in the package words these things: report, notebook, pages, evidence and model card read them.
`python -m experiments sentences` prints every sentence with its condition and an example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from hedgerow.privacy.guesses import bound_guesses, compute_meeting_chance
from hedgerow.privacy.ledger import Release
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.queries import NoiseCohort
from hedgerow.protocol.votes import MIN_POWER, Tally

if TYPE_CHECKING:
    from hedgerow.privacy.report import PrivacyReport

PROCESS, PROCESSES = "process", "processes"
NETWORK, FILES, FLOWER, NVFLARE, CARRIER = "network", "files", "flower", "nvflare", "carrier"
MIXED = "mixed"
UNRECORDED = "unrecorded"
"""Place of an evaluation that no file names, beside known places."""
AT_SITE = "site"
"""Place of an evaluation or recalibration by one site alone; its releases show it, so no file has to."""
PLACES = {
    PROCESS: "one process, which read all tables",
    PROCESSES: "processes that one user started, and that read all tables",
    NETWORK: "nodes of the sites, whose messages went over a network",
    FILES: "nodes of the sites, whose messages people carried as files",
    FLOWER: "nodes of the sites, whose messages Flower carried",
    NVFLARE: "nodes of the sites, whose messages NVFlare carried",
    CARRIER: "nodes of the sites, whose messages another program carried",
    MIXED: "nodes of the sites, whose messages went over a network, or were carried",
}
"""Places where a model is made, by what carried the messages, if there were any."""
TOGETHER = (PROCESS, PROCESSES)
"""Places where one user had all tables."""


class Depth(IntEnum):
    """Depth of a sentence; a reader of a deeper level reads the sentences of the others too."""

    PERSON = 1
    ANALYST = 2
    CHECKER = 3


class Topic(StrEnum):
    """Subject of a sentence."""

    PROMISE = "promise"
    GUESSES = "guesses"
    MADE_IN = "made in"
    TRUST = "trust"
    GROUPS = "groups of sites"
    SUMS = "sums of sites"
    GAPS = "not covered"


@dataclass(frozen=True)
class Sentence:
    """A sentence of a statement, or a few that belong together."""

    name: str
    topic: Topic
    depth: Depth
    text: str


@dataclass(frozen=True)
class SentenceKind:
    """A possible sentence of a statement.

    Attributes:
        name, topic, depth: as of a `Sentence`.
        conditions: all have to hold. The first line of each docstring, after "Return whether", says it in words.
        write: makes its text.
    """

    name: str
    topic: Topic
    depth: Depth
    conditions: tuple[Callable[[PrivacyReport], bool], ...]
    write: Callable[[PrivacyReport], str]

    @property
    def condition(self) -> str:
        """Condition of the sentence, in words."""
        lines = [(each.__doc__ or each.__name__).splitlines()[0] for each in self.conditions]
        return "; ".join(line.removeprefix("Return whether ").rstrip(".") for line in lines)


@dataclass(frozen=True)
class Statement:
    """All sentences of one run, in order."""

    sentences: tuple[Sentence, ...]

    def list_texts(self, *topics: Topic, depth: Depth = Depth.CHECKER) -> list[str]:
        """Return the sentences of some topics, or of all, for a reader of this depth."""
        return [
            each.text for each in self.sentences if each.depth <= depth and (not topics or each.topic in topics)
        ]  # fmt: skip

    def to_dict(self) -> list[dict[str, str]]:
        """Return the sentences as JSON values."""
        return [
            {"name": each.name, "topic": each.topic.value, "depth": each.depth.name.lower(), "text": each.text}
            for each in self.sentences
        ]


KINDS: list[SentenceKind] = []
"""Every sentence, in the order in which a statement has them."""


def make_statement(report: PrivacyReport, *topics: Topic) -> Statement:
    """Make the sentences of the given topics, by default of all, if their conditions hold for this run."""
    asked = [kind for kind in KINDS if not topics or kind.topic in topics]
    made = [kind for kind in asked if all(holds(report) for holds in kind.conditions)]
    return Statement(tuple(Sentence(kind.name, kind.topic, kind.depth, kind.write(report)) for kind in made))


def find_guess_bound(report: PrivacyReport) -> float:
    """Compute the largest chance of a right guess about one unit from a report's releases."""
    return bound_guesses(report.ledger.events(), report.epsilon, report.delta)


def _sentence(
    topic: Topic, depth: Depth, *conditions: Callable[[PrivacyReport], bool]
) -> Callable[[Callable[[PrivacyReport], str]], Callable[[PrivacyReport], str]]:
    def add(write: Callable[[PrivacyReport], str]) -> Callable[[PrivacyReport], str]:
        name = write.__name__.removeprefix("_say_").replace("_", "-")
        KINDS.append(SentenceKind(name, topic, depth, conditions, write))
        return write

    return add


# Parts of a ledger, and who added their noise -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Releases made in one place with one kind of noise.

    Attributes:
        mode: who added the noise by the plan: "server", "distributed" or "local".
        place: one of `PLACES`; "" where no file says it, or where there were several.
        releases: in the ledger's order.
    """

    mode: str
    place: str
    releases: tuple[Release, ...]


def _find_training(report: PrivacyReport) -> _Part:
    """Return the noisy releases of the training, and of what came before it unless nodes trained.

    Who made the sums that a plan states, and where, is not recorded: nothing that nodes promise holds for them.
    """
    start = report.n_prepared if _is_between_nodes(report) else 0
    releases = (each for each in report.ledger.releases[start:] if not each.is_vote)
    own = (each for each in releases if each.noise_mode and not each.is_later)
    return _Part(report.noise_mode, _known(report.made_in), tuple(own))


def _list_evaluations(report: PrivacyReport) -> list[_Part]:
    """Return the evaluations with another noise mode or place than the training, or that fewer colluders may break."""
    own = [each for each in report.ledger if each.is_later and not each.is_at_one_site]
    later, parts = [each for each in own if each.noise_mode not in ("", "site")], list[_Part]()
    place = _find_evaluation_place(report)
    limit = _find_limit(report)
    for mode in dict.fromkeys(each.noise_mode for each in later):
        part = _Part(mode, place, tuple(each for each in later if each.noise_mode == mode))
        # Fewer sites may have been there than in the training.
        is_weaker = any(each.cohort is not None and each.cohort.n_colluders < limit for each in part.releases)
        is_other = mode != report.noise_mode or place != _known(report.made_in)
        if is_other or is_weaker or not _find_training(report).releases:
            parts.append(part)
    return parts


def _find_evaluation_place(report: PrivacyReport) -> str:
    return _known(report.evaluated_in[0]) if len(report.evaluated_in) == 1 else ""


def _known(place: str) -> str:
    return place if place in PLACES else ""


# Conditions -----------------------------------------------------------------------------------------------------------


def _holds(report: PrivacyReport) -> bool:
    """Return whether the guarantee holds."""
    return report.guarantee == "holds"


def _is_small(report: PrivacyReport) -> bool:
    """Return whether odds may change by a factor of 1,000 at most."""
    return not _is_large(report)


def _is_large(report: PrivacyReport) -> bool:
    """Return whether odds may change by a factor of more than 1,000."""
    return report.epsilon > math.log(1000)


def _has_noise(report: PrivacyReport) -> bool:
    """Return whether some release has noise."""
    return any(each.noise_mode for each in report.ledger)


def _has_no_noise(report: PrivacyReport) -> bool:
    """Return whether no release has noise."""
    return not _has_noise(report)


def _has_training(report: PrivacyReport) -> bool:
    """Return whether the training released something with noise."""
    return bool(_find_training(report).releases)


def _is_server(report: PrivacyReport) -> bool:
    """Return whether the plan has the coordinator add the noise."""
    return report.noise_mode == "server"


def _is_distributed(report: PrivacyReport) -> bool:
    """Return whether the plan has the sites add the noise."""
    return report.noise_mode == "distributed"


def _is_local(report: PrivacyReport) -> bool:
    """Return whether the plan has each record's node add the noise."""
    return report.noise_mode == "local"


def _is_not_local(report: PrivacyReport) -> bool:
    """Return whether the plan does not have each record's node add the noise."""
    return not _is_local(report)


def _is_process(report: PrivacyReport) -> bool:
    """Return whether the model's file says that one user's process or processes made it."""
    return report.made_in in TOGETHER


def _is_between_nodes(report: PrivacyReport) -> bool:
    """Return whether the model's file says that nodes of the sites made it."""
    return _known(report.made_in) not in ("", *TOGETHER)


def _is_carried(report: PrivacyReport) -> bool:
    """Return whether the model's file says that Flower or NVFlare carried the messages."""
    return report.made_in in (FLOWER, NVFLARE)


def _is_placed(report: PrivacyReport) -> bool:
    """Return whether the model's file says where it was made."""
    return _known(report.made_in) != ""


def _is_unplaced(report: PrivacyReport) -> bool:
    """Return whether the model's file does not say where it was made."""
    return not _is_placed(report)


def _may_be_between_nodes(report: PrivacyReport) -> bool:
    """Return whether the model's file does not say that one user's process or processes made it."""
    return not _is_process(report)


def _has_groups(report: PrivacyReport) -> bool:
    """Return whether the training added up groups of sites."""
    return report.n_groups > 0


def _has_drawings(report: PrivacyReport) -> bool:
    """Return whether groups of sites, with noise of the sites, were drawn anew during the run."""
    is_known = report.n_drawings > 1 and report.n_sites > report.n_groups > 0
    return is_known and _is_distributed(report) and _find_limit(report) > 0


def _has_votes(report: PrivacyReport) -> bool:
    """Return whether sites voted on the model while it was trained."""
    return bool(report.tallies)


def _has_vote_releases(report: PrivacyReport) -> bool:
    """Return whether votes of sites are among the releases."""
    return any(each.is_vote for each in report.ledger)


def _has_evaluations_apart(report: PrivacyReport) -> bool:
    """Return whether an evaluation had other noise than the training, was made elsewhere, or had too few sites."""
    return bool(_list_evaluations(report))


def _has_site_figures(report: PrivacyReport) -> bool:
    """Return whether an evaluation released figures of single sites."""
    return any(each.is_by_site for each in report.ledger)


def _has_evaluation_at_site(report: PrivacyReport) -> bool:
    """Return whether one site by itself evaluated the model."""
    return any(each.noise_mode == "alone" and not each.is_recalibration for each in report.ledger)


def _has_recalibration(report: PrivacyReport) -> bool:
    """Return whether one site by itself recalibrated the model."""
    return any(each.noise_mode == "alone" and each.is_recalibration for each in report.ledger)


def _has_prepared(report: PrivacyReport) -> bool:
    """Return whether the plan states sums that were released before the training."""
    return report.n_prepared > 0


def _has_clear_sums(report: PrivacyReport) -> bool:
    """Return whether the plan adds sums of sites up without masks."""
    return report.sums_in_clear


def _is_of_records(report: PrivacyReport) -> bool:
    """Return whether the plan protects a record."""
    return report.unit == "record"


def _is_of_units(report: PrivacyReport) -> bool:
    """Return whether the plan protects all rows of a unit."""
    return not _is_of_records(report)


def _has_authors(report: PrivacyReport) -> bool:
    """Return whether the run used a method, a loss or a label that is no part of Hedgerow."""
    return bool(report.authors)


# The promise ----------------------------------------------------------------------------------------------------------


def _describe_rows(report: PrivacyReport) -> str:
    return "one row" if _is_of_records(report) else f"the rows of one {report.unit}"


@_sentence(Topic.PROMISE, Depth.PERSON, _holds, _is_small)
def _say_factor(report: PrivacyReport) -> str:
    # Delta is added to chances. It is not the chance that the odds change by more than e^epsilon, which is larger. At
    # epsilon 1 and delta 1e-5 Gaussian noise lets them do so with 1.6e-4.
    rows = _describe_rows(report)
    other = f"if {rows} had counted as zeros" if _is_local(report) else f"without {rows}"
    factor = math.ceil(math.exp(report.epsilon) * 100) / 100
    return (
        f"any conclusion that anybody draws from what was released is at most {factor:.2f} times as likely, plus "
        f"{_percent(report.delta)}, as it would be {other}; and the other way round"
    )


@_sentence(Topic.PROMISE, Depth.PERSON, _holds, _is_large)
def _say_little(report: PrivacyReport) -> str:
    rows = _describe_rows(report)
    return f"so large an epsilon says little: what was released may give away much about {rows}"


@_sentence(Topic.PROMISE, Depth.PERSON, _holds, _has_authors)
def _say_condition(report: PrivacyReport) -> str:
    return f"this holds {report.condition}"


@_sentence(Topic.GUESSES, Depth.PERSON, _holds)
def _say_guesses(report: PrivacyReport) -> str:
    return describe_guesses(report.unit, report.guess_bound, is_local=_is_local(report))


# Where it was made, and whom one trusts -------------------------------------------------------------------------------


@_sentence(Topic.MADE_IN, Depth.ANALYST, _is_placed)
def _say_place(report: PrivacyReport) -> str:
    counted = "tables" if _is_process(report) else "sites on the roster"
    return PLACES[report.made_in] + (f"; {counted}: {report.n_sites}" if report.n_sites else "")


@_sentence(Topic.MADE_IN, Depth.ANALYST, _is_unplaced)
def _say_no_place(report: PrivacyReport) -> str:
    return "not recorded: one process may have read all tables"


@_sentence(Topic.MADE_IN, Depth.CHECKER, _is_between_nodes)
def _say_machines(report: PrivacyReport) -> str:
    return "whose machines the nodes ran on is not recorded: whoever had a site's machine had its rows"


@_sentence(Topic.TRUST, Depth.PERSON, _has_no_noise)
def _say_no_noise(report: PrivacyReport) -> str:
    return "Nothing that was released has noise: nothing is promised, whomever one trusts."


@_sentence(Topic.TRUST, Depth.PERSON, _has_training, _is_server)
def _say_server(report: PrivacyReport) -> str:
    return _describe_trust(report, _find_training(report))


@_sentence(Topic.TRUST, Depth.PERSON, _has_training, _is_distributed)
def _say_sites(report: PrivacyReport) -> str:
    return _describe_trust(report, _find_training(report))


@_sentence(Topic.TRUST, Depth.PERSON, _has_training, _is_local)
def _say_records(report: PrivacyReport) -> str:
    return _describe_trust(report, _find_training(report))


@_sentence(Topic.TRUST, Depth.ANALYST, _has_training, _is_carried)
def _say_carrier(report: PrivacyReport) -> str:
    return (
        "The coordinator ran on the carrier's server: whoever operates that server is the coordinator for this promise."
    )


@_sentence(Topic.TRUST, Depth.PERSON, _has_prepared, _is_between_nodes)
def _say_prepared(report: PrivacyReport) -> str:
    return (
        f"For the {report.n_prepared} release(s) from before the training nothing is known but what the plan states: "
        "who added their noise, and whether one process read all tables for them, is not recorded."
    )


@_sentence(Topic.TRUST, Depth.PERSON, _has_evaluations_apart)
def _say_evaluations(report: PrivacyReport) -> str:
    return " ".join(
        f"In {len(part.releases)} release(s) of an evaluation: {_describe_trust(report, part, is_training=False)}"
        for part in _list_evaluations(report)
    )


@_sentence(Topic.TRUST, Depth.ANALYST, _has_site_figures)
def _say_figures(report: PrivacyReport) -> str:
    count = sum(each.is_by_site for each in report.ledger)
    begin = f"In {count} release(s) of an evaluation by site: "
    own = (
        "each site that allows it adds the whole noise to its own figures before they leave it: there is no trust in "
        "anyone but one's own site."
    )
    place = _find_evaluation_place(report)
    if place in TOGETHER:
        return f"{begin}{_name_reader(place)} and added each site's noise: whoever ran it has seen every row."
    return f"{begin}{own if place else _UNKNOWN + own}"


@_sentence(Topic.TRUST, Depth.ANALYST, _has_vote_releases)
def _say_vote_noise(report: PrivacyReport) -> str:
    begin = f"In {sum(each.is_vote for each in report.ledger)} release(s), the votes of sites: "
    own = (
        "each site adds the whole noise before it says one bit, which every party of the run reads: there is no trust "
        "in anyone but one's own site."
    )
    if _is_process(report):
        return f"{begin}{_name_reader(report.made_in)} and drew each site's noise: whoever ran it has seen every row."
    return f"{begin}{own if _is_placed(report) else _UNKNOWN + own}"


@_sentence(Topic.TRUST, Depth.ANALYST, _has_evaluation_at_site)
def _say_evaluation_at_site(report: PrivacyReport) -> str:
    return _describe_alone(report, "an evaluation at one site", is_recalibration=False)


@_sentence(Topic.TRUST, Depth.ANALYST, _has_recalibration)
def _say_recalibration(report: PrivacyReport) -> str:
    return _describe_alone(report, "a recalibration", is_recalibration=True)


def _describe_alone(report: PrivacyReport, name: str, *, is_recalibration: bool) -> str:
    alone = [each for each in report.ledger if each.noise_mode == "alone"]
    count = sum(each.is_recalibration == is_recalibration for each in alone)
    said = "one process read one site's table and added the noise: only whoever ran it saw rows or exact sums here"
    return f"In {count} release(s) of {name} {said}."


_UNKNOWN = (
    "Where this was made is not recorded. If one process read all tables, whoever ran it has seen every row, and the "
    "guarantee does not hold against them. If each site had a node of its own: "
)


def _describe_trust(report: PrivacyReport, part: _Part, *, is_training: bool = True) -> str:
    """Describe whom some releases require one to trust."""
    n_choices = report.n_choices if is_training else 0
    begin = "For the releases of the training: " if is_training and report.n_prepared and part.place else ""
    chooses = "it chooses from exact sums, and is trusted to do so by the exponential mechanism. "
    chooses = f"In {n_choices} of the releases {chooses}" if n_choices else ""
    if part.place in TOGETHER:
        drew = {
            "server": "added the noise",
            "distributed": "drew the noise in place of the sites",
            "local": "drew the noise of each record",
        }[part.mode]
        return (
            f"{_name_reader(part.place).capitalize()} and {drew}: whoever ran it has seen every row, and is trusted to "
            f"keep rows and exact sums to themselves. {chooses}The guarantee holds against everybody else."
        )
    between = {
        "server": (
            f"The coordinator adds the noise: it sees the exact sums over {_describe_sum(report, is_training)}, and is "
            f"trusted to add the noise and to keep those sums to itself. {chooses}The guarantee holds against "
            "everybody else."
        ),
        "local": (
            "Each record's node adds the noise before anything leaves it, as much for each of its records as would "
            "suffice alone: there is no trust in anyone but one's own node. How many rows each site has is taken to be "
            "known."
        ),
        "distributed": (
            "The sites add the noise: the guarantee holds against the coordinator as well, as long as "
            f"{_describe_colluders(report, part, is_training)}."
        ),
    }[part.mode]
    return begin + between if part.place else _UNKNOWN + between


def _name_reader(place: str) -> str:
    return "one process read all tables" if place == PROCESS else "one user's processes read all tables"


def _describe_sum(report: PrivacyReport, is_training: bool) -> str:
    return f"each of {report.n_groups} groups of sites" if is_training and report.n_groups else "all sites"


def _describe_colluders(report: PrivacyReport, part: _Part, is_training: bool) -> str:
    """Describe the condition under which noise of the sites keeps the promise."""
    counts: dict[tuple[NoiseCohort, bool], int] = {}
    before = set(map(id, report.ledger.releases[: report.n_prepared]))
    for release in part.releases:
        if release.cohort is not None:
            key = release.cohort, is_training and report.n_groups > 0 and id(release) not in before
            counts[key] = counts.get(key, 0) + 1
    said, several = [], len(counts) > 1
    for (cohort, is_grouped), count in counts.items():
        most = f"at most {cohort.n_colluders}" if cohort.n_colluders else "none"
        among = f"the {cohort.n_sites} sites"
        if is_grouped:
            in_all = f" (of all {report.n_sites} sites: {most}, whichever)" if report.n_sites else ""
            among = f"any group of {_describe_group_size(report, cohort)} sites{in_all}"
        said.append(f"{most} of {among}" + (f" in {count} release(s)" if several else ""))
    known = (
        f"{', and '.join(said)} work together with it, or depart from the protocol (a site that falls silent does not)"
    )
    # An older version did not record the number of sites.
    lost = (getattr(release.event, "n_shares", 0) for release in part.releases if release.cohort is None)
    unknown = sorted(set(lost) - {0})
    if not unknown:
        return known if said else "few enough sites work together with it"
    known = f"{known}; and, in releases of an older version, " if said else ""
    return (
        f"{known}the shares of at least {' or '.join(map(str, unknown))} sites that follow the protocol and work "
        "together with no one are in every sum. Among how many sites, an older version did not write down"
    )


def _describe_group_size(report: PrivacyReport, cohort: NoiseCohort) -> str:
    # From the smallest group that the roster gives to the largest.
    least = report.n_sites // report.n_groups if report.n_sites else cohort.n_sites
    return f"{least} to {cohort.n_sites}" if least < cohort.n_sites else str(cohort.n_sites)


def _find_limit(report: PrivacyReport) -> int:
    """Return the number of colluding sites that a training's group tolerates; 0 if no cohort is known."""
    found = [each.cohort.n_colluders for each in _find_training(report).releases if each.cohort is not None]
    return min(found, default=0)


# Groups ---------------------------------------------------------------------------------------------------------------


@_sentence(Topic.GROUPS, Depth.ANALYST, _has_groups)
def _say_groups(report: PrivacyReport) -> str:
    return (
        f"{report.n_groups}: each release of the training is a noisy sum of every group, and the middle of them counts"
    )


@_sentence(Topic.GROUPS, Depth.ANALYST, _has_drawings, _may_be_between_nodes)
def _say_drawings(report: PrivacyReport) -> str:
    n_together = _find_limit(report) + 1
    numbers = report.n_sites, report.n_groups, report.n_drawings, n_together
    meet, beside = (format_share(float(compute_meeting_chance(*numbers, each))) for each in (0, 1))
    return (
        f"they were dealt {report.n_drawings} times. {n_together} sites that work together meet in one group at least "
        f"once with a chance of {meet}, and beside one given other site with {beside}; while they do, less noise is "
        "unknown to them there than was charged. Chances are for keys that nobody chose for it: whoever chooses a key "
        "can choose the first group"
    )


@_sentence(Topic.GROUPS, Depth.PERSON, _has_votes)
def _say_votes(report: PrivacyReport) -> str:
    tallies = [Tally(*counts) for counts in report.tallies]
    counts = ", ".join(f"{each.n_objections} of {each.n_voted}" for each in tallies)
    said = f"at {len(tallies)} votes on the model so far, sites that said it predicts their rows badly: {counts}"
    if any(each.is_against(report.n_groups) for each in tallies):
        return f"{said}. Most were against it: it is likely spoilt, and nobody is named (docs/poisoning.md)"
    if report.vote_power < MIN_POWER:
        return (
            f"{said}. This cannot tell whether the model is spoilt: with the rows that sites declare, a model turned "
            f"round would be told with a chance of {report.vote_power:g} only"
        )
    return f"{said}. A model turned round would be told with a chance of {report.vote_power:g} or more"


@_sentence(Topic.SUMS, Depth.ANALYST, _has_clear_sums)
def _say_clear_sums(report: PrivacyReport) -> str:
    return "in the clear: the party that added them up could see each site's own"


# What is not covered --------------------------------------------------------------------------------------------------


@_sentence(Topic.GAPS, Depth.PERSON)
def _say_before(report: PrivacyReport) -> str:
    return (
        "what was computed from several rows before Hedgerow read them (fitted scalers, encoders, imputed means, "
        "bounds and lists that are called declared but were read off rows, values that a reader changed by its guess "
        "of a column's type): it may show single rows; and exact scores of private rows"
    )


@_sentence(Topic.GAPS, Depth.PERSON, _holds)
def _say_facts(report: PrivacyReport) -> str:
    return "what is true of many: it is learnt also about somebody who was not in the data"


@_sentence(Topic.GAPS, Depth.ANALYST, _holds, _may_be_between_nodes)
def _say_more_rows(report: PrivacyReport) -> str:
    epsilon = format_up(max(report.epsilon, report.epsilon_of_rows(2)), 3)
    return (
        "a site with a node of its own that holds more rows than its roster declares: there the promise is weaker "
        f"(replacing one {report.unit} by another), at most epsilon {epsilon}"
    )


@_sentence(Topic.GAPS, Depth.ANALYST, _holds, _is_of_units)
def _say_more_sites(report: PrivacyReport) -> str:
    return f"a {report.unit} with rows at more than {report.sites_per_unit} site(s), who is protected less"


# Before a run, and numbers --------------------------------------------------------------------------------------------


def describe_guesses(unit: str, bound: float, *, is_local: bool) -> str:
    """Describe the largest chance of a right guess about one unit; `bound` as from `find_guess_bound`."""
    rows = "one row" if unit == "record" else f"the rows of one {unit}"
    asked = f"whether {rows} {'was' if unit == 'record' else 'were'} in the data"
    if is_local:
        asked = f"whether what the node sent of {rows} was true or zeros"
    guess = "somebody who knows all other rows guesses, at even odds,"
    return f"{guess} {asked}: right in at most {format_share(bound)} of cases (a coin: 50 %)"


def format_share(share: float) -> str:
    """Return a share in percent with one digit after the point, rounded up."""
    return f"{(Decimal(share) * 100).quantize(Decimal('0.1'), ROUND_CEILING):f} %"


def _percent(delta: float) -> str:
    """Format a small chance in percent, with its digits as written."""
    return f"{(Decimal(repr(delta)) * 100).normalize():f} %"
