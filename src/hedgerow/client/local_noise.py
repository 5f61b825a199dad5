"""The local model of differential privacy: a node's answer with noise for each of its records.

Each record's vector is to have its own discrete Gaussian noise, N_Z(0, sigma²) on every entry, before anybody else sees
anything of it. A node of n records draws the sum of these noises at once: one discrete Gaussian with the standard
deviation sqrt(n) sigma, rounded up to an integer. That is n times cheaper than n draws, and nothing is lost. What is
accounted for is one record's noise, and what leaves is private by it: the vector of a site has a single discrete
Gaussian of at least that sigma, for which the ledger's event holds exactly, without a word on sums of draws. But for
the rounding, the log-ratio of the two distributions is below 10 n exp(-pi² sigma²) an entry
(docs/proofs/discrete-gaussian.md, theorem 2), which is nothing for a sigma of hundreds of grid units. A site without
rows adds one record's noise.

Source of the baseline: Maddock et al., CCS'22, section 5.3 ("LDP baseline": each user adds Gaussian noise before
releasing their gradient information).
"""

from __future__ import annotations

from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.query_noise import noise_of, noise_of_records
from hedgerow.protocol.queries import IntVector, Query


def noise_of_site(query: Query, site: str, n_records: int, source: NoiseSource) -> IntVector | int:
    """What a site of so many records (>= 0) adds to its vector in the local model: int64 [query.length], or 0.

    Args: source: where it is drawn, under a name that tells sites apart.
    """
    sigma = noise_of_records(noise_of(query, is_local=True).record_sigma, n_records)
    return source.sample(sigma, query.length, f"{query.purpose}/records of {site}") if sigma else 0
