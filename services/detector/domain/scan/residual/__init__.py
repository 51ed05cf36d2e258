"""How far each row is from what it should be: less its healthy peers, less what is its own by nature."""
