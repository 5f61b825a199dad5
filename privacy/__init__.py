"""Privacy as arithmetic: sensitivities, the ledger, accountants, calibration and exact discrete noise."""
