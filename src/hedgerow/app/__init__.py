# SPDX-License-Identifier: Apache-2.0
"""What a party does, for the command line, Flower and Python alike: take part, coordinate, answer its owner, watch."""
