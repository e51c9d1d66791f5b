"""Results of a store on another host: what its workers answer, and how a client asks. `docs/remote.md` has the protocol."""
