"""Results of a store on another host: the workers' answers, and the client's questions. `docs/remote.md` has the
protocol."""
