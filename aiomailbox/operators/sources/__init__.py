"""Sources and the operator that reads them."""
