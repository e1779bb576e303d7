"""The page format: journals, headers and sealed pages, as `docs/pages.md` describes them, and their writer."""
