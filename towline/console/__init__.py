"""The face of Towline: the web console and the REST door, in a process of their own, clients like any other."""
