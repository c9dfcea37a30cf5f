"""Columns inside the pipeline: Arrow runs, and the records made from them.

Theory of operation: an operator on columns does what its operator of rows does, until only
rows give the right result; then it goes on as that one, for good (`ColumnarOperator`). Its
state is in arrays, and in snapshots as that of rows. The modules, from the bottom up:

* types: `plain`, `unify`, `meaning`, `ipc`;
* between columns and records: `forms`, `fields`, `decode`, `encode`, `rows`;
* the run: `arrow_run`, `keys` for the place of each key, `arrow_form` for the way to another
  process;
* expressions: `kernels`, `evaluator`, `conditions`; `projection` and `expressions` for the
  verbs with them;
* aggregates: `values` read of a run, added by `pieces` to `cells`, with `groups` for the order
  of additions; `rolling` emits each result on the way;
* windows: `cell_grid`, `window_grid` and `session_cells` keep cells by window; `windows` is
  the base of `aligned` (tumbling and sliding), `paned` (sliding by panes) and `sessions`;
* joins: `kept_columns` finds records by key and time, `pair_run` has pairs that were found,
  `pair_selection` makes records of them; `columnar_join` is the base of `interval_join` and
  `window_join`;
* functions of the user: `map_batches`; `async_column`, with the fields that `called_with` finds.
"""
