"""Event time: watermarks, idleness, the valve, timers."""
