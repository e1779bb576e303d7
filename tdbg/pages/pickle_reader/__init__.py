"""Pages that joblib, pickle or torch.save wrote, read as data: no pickle is ever run."""
