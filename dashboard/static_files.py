"""Static files under names that change with their content, so that browsers may keep them for ever."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class StaticFiles(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Falls back to plain names while nothing has been collected, as under tests."""

    manifest_strict = False

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name
