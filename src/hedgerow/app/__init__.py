# SPDX-License-Identifier: Apache-2.0
"""What a party does, for the command line, carriers and Python: take part, coordinate, answer its owner, watch."""
