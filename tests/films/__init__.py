"""Records films: an incident on real engines from a calm minute before it until ten minutes after its remedy."""
