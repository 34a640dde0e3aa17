"""What runs in the containers of docker-compose.yml beside the switch and the controller."""
