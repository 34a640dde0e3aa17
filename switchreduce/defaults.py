"""Defaults that several parts share: ports, timings and addresses, each once. Times are in seconds."""

P4RUNTIME_PORT = 9559  # registered for P4Runtime with IANA
CONTROLLER_PORT = 9560  # where workers join
AGGREGATION_ADDRESS = "127.0.0.1"  # what the switch answers to
SWITCH_MAC = "02:53:52:00:00:01"  # locally administered
BUILD = "wide256"
DEVICE_ID = 0  # as simple_switch_grpc

SLOTS_WANTED = 128  # of a job that leaves it to the controller
SLOTS_LEAST = 2  # fewer and a rank could not send one chunk while it waits for another

JOIN_TIMEOUT = 30.0  # for all ranks of a job to arrive
HELLO_TIMEOUT = 10.0  # once all have joined, for their hellos to come through the switch
HEARTBEAT_INTERVAL = 0.5
HEARTBEAT_TIMEOUT = 5.0  # silence after which a rank, or the controller, counts as lost
EXPLAIN_TIMEOUT = 1.5  # for the other ranks' reports on a failed call
SWITCH_WAIT = 30.0  # of a controller, for a switch to answer
