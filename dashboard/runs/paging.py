"""Pages of long lists."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet


class NarrowPaginator(Paginator):  # type: ignore[type-arg]  # takes no argument at run time
    """Finds the ids of a page first, then reads the rows of those ids.

    A database that skips to page 100 else reads and sorts every row before it with all that is joined to it.
    """

    def __init__(self, rows: QuerySet[Any], per_page: int, count: int | None = None) -> None:
        """`count`: how many rows there are, where that is known already."""
        super().__init__(rows, per_page)
        self.rows = rows
        if count is not None:
            self.count = count

    def page(self, number: int | float | str) -> Page[Any]:
        place = self.validate_number(number)
        first = (place - 1) * self.per_page
        ids = list(self.rows.values_list("pk", flat=True)[first : first + self.per_page])
        found = self.rows.in_bulk(ids)
        # One may be gone since.
        return Page([found[pk] for pk in ids if pk in found], place, self)
