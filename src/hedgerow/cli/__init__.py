"""The command line. `parser` and `main` import nothing heavy; a command's own module is imported when it is called."""
