"""The rank controller: a gRPC server whose handlers only enqueue, and the mailbox that the training thread reads."""
