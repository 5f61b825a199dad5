"""The hazardous layer: single cryptographic operations, correct only in the combinations that the rooms above make.

Only ``hedgerow.secagg`` and the envelopes of ``hedgerow.flower`` import from here. Each module wraps one construction
of the ``cryptography`` package (Shamir's scheme excepted, which it does not have), fixes its parameters, and refuses
every other.
"""
