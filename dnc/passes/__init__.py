"""The passes: pure functions over programs, one file each, named by a verb."""
