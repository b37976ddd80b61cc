"""DeltaMQ's protocol and clients. The core is pure: state in, events in, decisions out; time is passed in."""
