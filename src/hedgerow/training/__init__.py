# SPDX-License-Identifier: Apache-2.0
"""Parts that methods share: settings, candidates, the order of features, a program's steps."""
