"""The hazardous layer: single cryptographic operations, correct only in the combinations that the rooms above make.

``secagg`` and the envelopes of ``flower`` are those rooms; others only pass identities on. Each module wraps one
construction of the ``cryptography`` package (Shamir's scheme excepted, which it does not have), fixes its parameters,
and refuses every other.
"""
