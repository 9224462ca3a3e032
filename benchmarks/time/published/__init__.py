"""Published step times of training, compared with the virtual clock's predictions."""
