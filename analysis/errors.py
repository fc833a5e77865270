"""The one expected error of this package."""


class BadDump(Exception):
    """A dump, or one file of it, cannot be used. `path` names the file as the person knows it, `reason` says why in one
    line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
