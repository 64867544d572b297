-- name: Deposit :execrows
UPDATE accounts SET balance = balance + @amount WHERE id = @id;

-- name: Balance :one
SELECT balance FROM accounts WHERE id = @id;
