# SPDX-License-Identifier: Apache-2.0
"""The command line. `commands` and `main` import nothing heavy; a command's module is imported when it is called."""
