"""The classes for a consumer that uses the library alone, each without a thread and a clock."""
