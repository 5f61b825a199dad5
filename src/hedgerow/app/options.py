# SPDX-License-Identifier: Apache-2.0
"""Options of the parties, each declared once with its check, its default and its sentence.

The command line, the file of a carried party (`hedgerow.carriers`) and `docs/fields.md` follow from these records. A
field's metadata says more: `is_path`, `metavar` for the command line, `option` for a name there that differs,
`choices` that plug-ins may extend, and `in_file=False` for a field that no file has.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.plan.fields import boolean, define_field, distinct_texts, integer, number, one_of, text
from hedgerow.transport.uplinks import UPLINKS

if TYPE_CHECKING:
    from hedgerow.study import StudyInvitation


def _path(metavar: str, default: Any = None, **facts: Any) -> Any:
    return define_field(text, default, is_path=True, metavar=metavar, **facts)


@dataclass(frozen=True, kw_only=True)
class OwnerOptions:
    """Options of a site's owner, for a node and for joining a study.

    Attributes:
        data: rows to train on: a .csv, .csv.gz or .parquet file, or a database's URL with # and a query.
        held_out: rows that are held out, for evaluations and nothing else.
        budget: the budget book of the data (NAME-budget.db beside the policy or the invitation).
        threads: threads to compute with (all).
        log_format: lines of the log: text, or one JSON object each.
        quiet: make no remarks on what goes as it should.
    """

    data: str | None = _path("DATA")
    held_out: str | None = _path("DATA")
    budget: str | None = _path("FILE")
    threads: int | None = define_field(integer(0, 4096), None, metavar="N")
    log_format: str = define_field(one_of("text", "json"), "text", in_file=False)
    quiet: bool = define_field(boolean, False, in_file=False)


@dataclass(frozen=True, kw_only=True)
class NodeOptions(OwnerOptions):
    """Options of a site's node.

    Attributes:
        arrivals: a folder; tables moved here while a run of S-GBDT goes on join it.
        models: models that may be evaluated, besides those that this node helped to make.
        plan: take part in this plan only; needed, unless the policy lists digests of plans.
        roster: who takes part, and by which keys.
        identity: this site's .private.json.
        policy: what this site's owner allows.
        connect: the coordinator, HOST:PORT.
        engine: what carries the messages.
        state: this node's own files, kept between runs (NAME-state beside the identity).
        external_memory: keep the codes of the rows in mapped files in the state folder, for tables that outgrow the
            memory.
        shards: hold the rows in this many parts, each in an actor of Ray: docs/shards.md.
        out: with --serve: where the models and their reports go (NAME-models beside the identity).
        leave: leave the run that the state holds, charged for what was answered in it; take part in the next one.
    """

    arrivals: str | None = _path("FOLDER")
    models: tuple[str, ...] = define_field(distinct_texts, (), is_path=True, metavar="MODEL", option="model")
    plan: str | None = _path("PLAN")
    roster: str = _path("ROSTER", dataclasses.MISSING)
    identity: str = _path("FILE", dataclasses.MISSING)
    policy: str = _path("FILE", dataclasses.MISSING)
    connect: str = define_field(text, "", metavar="HOST:PORT", in_file=False)
    engine: str = define_field(text, "grpc", choices=UPLINKS, in_file=False)
    state: str | None = _path("FOLDER")
    external_memory: bool = define_field(boolean, False, in_file=False)
    shards: int | None = define_field(integer(1, 10_000), None, metavar="N", in_file=False)
    out: str | None = _path("FOLDER", in_file=False)
    leave: bool = define_field(boolean, False, in_file=False)

    def state_folder(self, name: str) -> Path:
        """Return the state folder of the node of this name."""
        return Path(self.state or Path(self.identity).parent / f"{name}-state")

    def models_folder(self, name: str) -> Path:
        """Return the folder for received models."""
        return Path(self.out or Path(self.identity).parent / f"{name}-models")


@dataclass(frozen=True, kw_only=True)
class JoinOptions(OwnerOptions):
    """Options of a party that joins a study.

    Attributes:
        invitation: the file that the coordinator sent.
        data_set: what the budget of these rows is counted for, the same name for ever (the table's).
        max_rows: the most rows that this site will ever use, as a round public number: everybody sees it (none).
        plan: a corrected plan, in place of the invitation's.
        policy: your own policy, in place of the one that the invitation proposes.
        adapter: how this site writes its table: a file with a [data] table, which goes into the policy (docs/data.md).
        yes: agree to plan, policy and roster unasked; the words are compared anyway.
        expect: the sites that there shall be besides this one: a roster with others, or without one of them, is
            refused.
        connect: where the coordinator is now, if not where the invitation says; its keys are the invitation's all the
            same.
        folder: this party's own files, its keys among them (STUDY-PARTY).
    """

    invitation: str = _path("INVITATION", dataclasses.MISSING)
    data_set: str | None = define_field(text, None, metavar="NAME")
    max_rows: str | None = define_field(text, None, metavar="N")
    plan: str | None = _path("PLAN")
    policy: str | None = _path("FILE")
    adapter: str | None = _path("FILE")
    yes: bool = define_field(boolean, False)
    expect: str | None = define_field(text, None, metavar="SITE,SITE")
    connect: str = define_field(text, "", metavar="HOST:PORT")
    folder: str | None = _path("FOLDER")

    def party_folder(self, invitation: StudyInvitation) -> Path:
        """Return this party's own folder."""
        return Path(self.folder or Path(self.invitation).parent / f"{invitation.study}-{invitation.party}")


@dataclass(frozen=True, kw_only=True)
class CoordinatorOptions:
    """Options of a coordinator, as its operator gives them.

    Attributes:
        plan: the plan to train by.
        model: the model to evaluate, in place of a training.
        epsilon: what the evaluation may cost.
        delta: a small probability that is added to what the evaluation may cost (the model's).
        noise: who adds the noise to an evaluation, whoever added it to the training; sites have to allow it
            (distributed).
        by: measure each public group of this feature as well, or with 'site' each site that allows it: another noisy
            sum, within the same epsilon.
        roster: who takes part, and by which keys.
        identity: the coordinator's .private.json.
        out: the model file to write.
        scores: where an evaluation's numbers are written as JSON (the log only).
        journal: where the run is journalled; started again, it goes on (OUT.journal, OUT.evaluation-N.journal).
        by_files: sites whose messages are files, where others dial `listen`; the coordinator then stays until the end.
        listen: where nodes dial by gRPC, HOST:PORT (127.0.0.1:7443; beside a carrier none).
        engine: what carries the messages.
        repeat: seconds before a request without a reply is sent again.
        seed: draw the noise from a seed: for experiments, voids the guarantee; -1 for none.
        plugins: modules of other packages to load, as a site's policy names them.
        log_format: lines of the log: text, or one JSON object each.
        quiet: make no remarks on what goes as it should.
        ended_by: what ends a run for good, for the operator who interrupts it.
    """

    plan: str = _path("PLAN", "")
    model: str = _path("MODEL", "")
    epsilon: float = define_field(number(0.0, math.inf, exclusive=True), 0.0)
    delta: float | None = define_field(number(0.0, 1.0, exclusive=True), None)
    noise: str = define_field(one_of("distributed", "server"), "")
    by: tuple[str, ...] = define_field(distinct_texts, (), metavar="COLUMN")
    roster: str = _path("ROSTER", dataclasses.MISSING)
    identity: str = _path("FILE", dataclasses.MISSING)
    out: str = _path("MODEL", "")
    scores: str = _path("FILE", "")
    journal: str | None = _path("FILE")
    by_files: tuple[str, ...] = define_field(distinct_texts, ())
    listen: str = define_field(text, "", metavar="HOST:PORT")
    engine: str = define_field(text, "grpc", choices=UPLINKS, in_file=False)
    repeat: int = define_field(integer(1, 3600), 30)
    seed: int | None = define_field(integer(-1, 1 << 62), None)
    plugins: tuple[str, ...] = define_field(distinct_texts, ())
    log_format: str = define_field(one_of("text", "json"), "text", in_file=False)
    quiet: bool = define_field(boolean, False, in_file=False)
    ended_by: str = define_field(text, "", in_file=False)
