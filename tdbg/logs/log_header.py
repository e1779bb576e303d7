"""What a filter of logs has to know of tdbg's own: the names of its files, and the level letters of a header."""

RECORDS = "records.jsonl"  # beside the two logs: the program's own log records
STATS = 15  # a level between DEBUG and INFO: figures that a person reads now and then
LEVELS = {"D": 10, "S": STATS, "I": 20, "W": 30, "E": 40, "C": 50}
