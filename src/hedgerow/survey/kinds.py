"""The kinds of cells that a survey counts; by themselves, for commands that read cells load no compiled code for it."""

NUMBER, DATE, TRUTH, TEXT, ABSENT = range(5)
"""What a cell can be: a number, a date or moment, true or false, another text, or missing, which is what is none."""
N_KINDS = 5
