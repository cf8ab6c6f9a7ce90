"""The classes for consumers that use only the library, each without a thread and a clock."""
