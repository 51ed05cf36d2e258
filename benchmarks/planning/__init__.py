"""Planning benchmarks: published figure, our reproduction of that system, Evenkeel, the bound."""
