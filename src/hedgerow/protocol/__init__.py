# SPDX-License-Identifier: Apache-2.0
"""What all parties agree on: the plan, the queries, the wire messages, the script of a round and the errors."""
