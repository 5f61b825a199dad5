# SPDX-License-Identifier: Apache-2.0
"""Tables of sites, from their source to codes."""
