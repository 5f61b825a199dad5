"""One site of a survey: it answers questions about its raw cells, and believes no sensitivity but its own."""

from __future__ import annotations

from hedgerow.errors import RemoteProtocolError
from hedgerow.protocol.queries import IntVector, Query
from hedgerow.survey.queries import UNIT, RawSite, SurveyQuery


class SurveyNode:
    """A site that answers a `SurveyQuery` and nothing else.

    Args:
        site: the site's name.
        rows: its raw rows, at most `max_rows_per_unit` of each unit.
        rows_per_unit: rows of one unit in a sum over all sites, at most.
    """

    def __init__(self, site: str, rows: RawSite, rows_per_unit: int = 1) -> None:
        self.site = site
        self._rows = rows
        self._rows_per_unit = rows_per_unit

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another kind, or one that claims less sensitivity than one unit's
                contribution has, or another length than its answer.
        """
        if not isinstance(query, SurveyQuery):
            raise _refused(f"a {type(query).__name__} query has no place in a survey")
        least = query.norm_squared() * self._rows_per_unit**2
        if query.bound < UNIT or query.sensitivity_squared < least:
            raise _refused("it claims a smaller sensitivity than one unit's contribution has")
        if query.length != query.expected_length():
            raise _refused("its answer has another length than it says")
        return query.answer(self._rows)

    def finish(self, query: Query) -> None:
        """A round that this node missed: raw cells stay what they are."""


def _refused(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError("survey-query-refused", reason=reason)
